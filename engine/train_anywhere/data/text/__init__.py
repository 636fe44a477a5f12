"""Documents as rows of tokens for a language model.

sources          finds and reads documents
document_split   assigns them to train, val and test
tokenizer        turns strings into tokens and back; `vocabulary` has its size
token_files      writes the token files
token_cache      writes them once for all processes, and checks them
rows             cuts tokens into rows
splits           opens the data set
checks           finds problems before a run starts
"""
