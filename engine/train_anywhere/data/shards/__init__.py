"""Rows by index from shards as they are: tar files of webdataset's layout, Parquet, and lines of JSON."""
