"""text: documents as rows of tokens for a language model.

In order: `sources` finds and reads documents, `parts` decides which are for training, `tokenizer` turns text into numbers and back, `build`
writes the token files, `cache` makes that happen once for all processes and checks what is there, `rows` cuts tokens into rows, and
`splits.open_text` puts it together. `checks` is called where a job is submitted.
"""
