"""The recipe: the configuration of a run. Its sections, YAML parsing, validation and errors."""

from transduce.recipe.audio import Audio, SpecAugment
from transduce.recipe.chunk import Chunk, check_chunk
from transduce.recipe.corpus import (
    Column,
    Columns,
    Corpus,
    Hub,
    Mixture,
    Named,
    ParallelFiles,
    Recordings,
    Text,
    is_tagged,
    percentages,
    plain_tag,
)
from transduce.recipe.data import Data, Tokens, TokensOfSides
from transduce.recipe.explain import checked, nearest
from transduce.recipe.fine_tuning import Adapter, Start
from transduce.recipe.keys import Key, SectionKeys, sections
from transduce.recipe.model import (
    Characters,
    ConformerEncoder,
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    Decoder,
    Encoder,
    Model,
    NGrams,
    PooledEncoder,
    TransformerDecoder,
    TransformerEncoder,
)
from transduce.recipe.read import (
    dump_recipe,
    load_recipe,
    parse_recipe,
    read_recipe,
    resolve_data_folder,
    shipped,
    with_overrides,
)
from transduce.recipe.recipe import Recipe
from transduce.recipe.recurrent import RecurrentDecoder, RecurrentEncoder
from transduce.recipe.section import InvalidValue, Section
from transduce.recipe.training import Average, Decode, MetricName, Train, Validation

__all__ = [
    "Adapter",
    "Audio",
    "Average",
    "Characters",
    "Chunk",
    "Column",
    "Columns",
    "ConformerEncoder",
    "ConvolutionalDecoder",
    "ConvolutionalEncoder",
    "Corpus",
    "Data",
    "Decode",
    "Decoder",
    "Encoder",
    "Hub",
    "InvalidValue",
    "Key",
    "MetricName",
    "Mixture",
    "Model",
    "NGrams",
    "Named",
    "ParallelFiles",
    "PooledEncoder",
    "Recipe",
    "Recordings",
    "RecurrentDecoder",
    "RecurrentEncoder",
    "Section",
    "SectionKeys",
    "SpecAugment",
    "Start",
    "Text",
    "Tokens",
    "TokensOfSides",
    "Train",
    "TransformerDecoder",
    "TransformerEncoder",
    "Validation",
    "check_chunk",
    "checked",
    "dump_recipe",
    "is_tagged",
    "load_recipe",
    "nearest",
    "parse_recipe",
    "percentages",
    "plain_tag",
    "read_recipe",
    "resolve_data_folder",
    "sections",
    "shipped",
    "with_overrides",
]
