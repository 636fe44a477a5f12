"""Readers of files that data sets of the project have in common: IDX, MNIST, class folders, documents, tokens."""

__all__ = ["class_folders", "documents", "idx", "mnist_files", "tokenizer"]
