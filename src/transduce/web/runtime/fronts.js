// What encoders read, by kind.

import { Embedding } from "./embedding.js";
import { SpeechFront } from "./speech.js";
import { WordEmbedding } from "./words.js";

export const FRONTS = { tokens: Embedding, words: WordEmbedding, speech: SpeechFront };
