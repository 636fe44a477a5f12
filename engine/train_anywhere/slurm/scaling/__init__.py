"""The timing table: the same training on different numbers of nodes and devices, with different strategies and launch methods.

1. `start_table` reads the values to compare (`nodes=1,2 devices=1,4 strategy=auto,horovod`) and drops impossible combinations. It
   checks every cell, creates the folder of the table, and runs the cells one after the other, or submits them.
2. `timing_table` reads the runs at any time and shows time, rate, speed-up and efficiency as text, CSV and a page with a plot.
"""
