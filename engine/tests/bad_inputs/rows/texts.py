"""Texts that are none, and what is typed about them."""

from engine.tests.bad_inputs.row import Row, fifo, folder, link, read_only, unreadable, with_mode

FILES = {
    "an empty folder": ({"row/texts": folder}, r"data\.dir has too few documents: 0 different.*data\.files="),
    "hidden files alone": ({"row/texts/.a.txt": "text"}, r"data\.dir has too few documents: 0 different"),
    "empty files": ({"row/texts/a.txt": "", "row/texts/b.md": ""}, r"too few documents: 0 different, .*add some"),
    "a file that may not be read": ({"row/texts/a.txt": with_mode(0, b"text")}, r"a\.txt can't be read \(.*Permission denied.*; allow it \(chmod u\+r\)"),
    "a folder that may not be read": ({"row/texts/in/a.txt": "text", "row/texts/in": unreadable}, r"texts/in can't be listed \(Permission denied\)"),
    "a pipe": ({"row/texts/a.txt": fifo}, r"a\.txt: pipes or devices can't be read"),
    "a link to nothing": ({"row/texts/a.txt": link("nothere")}, r"a\.txt: dead links can't be read"),
    "a loop of folders": ({"row/texts/a.txt": "text", "row/texts/up": link("../texts")}, r"texts/up is a link to a folder that contains it, a loop; remove the link"),
    "one file": ({"row/texts/a.txt": "text"}, r"too few documents: 1 different, and these fractions need 3"),
    "Latin": ({"row/texts/a.txt": b"caf\xe9"}, r"a\.txt can't be read \(.*0xe9 in position 3.*iconv -t UTF-8"),
    "no JSON": ({"row/texts/a.jsonl": "text\n"}, r"a\.jsonl, line 1 is not a JSON object with a string"),
    "JSON over several lines": ({"row/texts/a.jsonl": '{\n"text": "a"\n}\n'}, r"a\.jsonl, line 1 is not a JSON object with a string"),
    "another key in JSON": ({"row/texts/a.jsonl": '{"body": "a"}\n'}, r"with a string 'text': .*body.*; use data\.text_key=NAME"),
    "a number in JSON": ({"row/texts/a.jsonl": '{"text": 1}\n'}, r"is not a JSON object with a string 'text'"),
    "Latin in JSON": ({"row/texts/a.jsonl": b'{"text": "\xe9"}\n'}, r"a\.jsonl, line 1 is not a JSON object"),
    "half a character in JSON": ({"row/texts/a.jsonl": '{"text": "\\udc00"}\n'}, r"line 1 is not a JSON object with a string"),
    "very deep JSON": ({"row/texts/a.jsonl": "[" * 200_000}, r"line 1 is not a JSON object"),
}  # fmt: skip
TYPED = {
    "data.dir={row}/none": r"data\.dir: .*/none does not exist",
    "data.dir=/dev/zero": r"/dev/zero does not exist or is no file",
    "data.dir=~nosuchuser": "~nosuchuser",
    "data.dir={row}/" + "x" * 300: r"data\.dir=.*too long",
    "data.cache={row}/closed/tokens": r"data\.cache: tokens can.t be written to .*you can't write to .*closed; use data\.cache=FOLDER",
    "data.cache={row}/a-file": r"data\.cache: .*a-file is a file, not a folder",
    "data.val_fraction=0": r"data\.val_fraction=0 must be above 0",
    "data.val_fraction=0.7 data.test_fraction=0.3": r"data\.val_fraction=0\.7 and data\.test_fraction=0\.3 leave nothing to train on",
    "data.test_fraction=1": r"data\.test_fraction=1 must be below 1",
    "data.vocabulary=256": r"data\.vocabulary=256 must be at least 320; 256 are the bytes",
    "data.length=1": r"data\.length=1 must be at least 2",
    "data.length=1e9": r"data\.length=",
    "data.tokenizer=words": r"data\.tokenizer=.*words is not bytes, bpe or a tokenizer\.json",
    "data.documents=mixed": r"data\.documents='mixed' is not one of packed, apart",
    "data.block_size=64": r"'data\.block_size' is not an argument of|'data\.block_size' is not a key",
}
AROUND = {"row/a-file": "text\n", "row/closed": read_only}
ROWS = [
    *(Row("data=text data.dir={row}/texts", says, files=files, name=f"texts: {what}") for what, (files, says) in FILES.items()),
    *(Row(f"data=text {words}", says, files=AROUND) for words, says in TYPED.items()),
]  # fmt: skip
