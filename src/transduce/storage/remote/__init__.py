"""Files of object stores and web servers, through fsspec: s3://, gs://, https://.

`paths.py` asks a store, again where it fails for a moment, and says in one sentence what is wrong.
`blocks.py` is the cache of blocks on this machine, through which all of them are read.
"""

from transduce.storage.remote.paths import RemotePath, is_remote

__all__ = ["RemotePath", "is_remote"]
