"""Live chunk migration: moving a range of documents to another shard while clients read and write it."""
