"""The timing table: the same training on different numbers of nodes and devices, with different strategies and launch methods.

1. `grid` reads what is to be compared (`nodes=1,2 devices=1,4 strategy=auto,horovod`) and leaves out what can't be.
2. `start` checks every cell, makes the folder of the table, and runs the cells one after the other, or submits them.
3. `table` reads the runs, however far they are: time, rate, speed-up, efficiency; as text, CSV and a page with a plot.
"""
