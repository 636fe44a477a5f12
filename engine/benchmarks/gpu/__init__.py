"""One command that tries the project on a GPU: is what it trains right, and how fast is it beside loops written by hand?

`__main__` runs the parts of each framework that is installed, each in a process of its own, and prints one table; a part is a module
whose `rows` yields a `Row` for each thing that it has tried.
"""
