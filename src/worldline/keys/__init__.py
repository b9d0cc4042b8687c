"""One file per keyspace. This folder is the storage format."""
