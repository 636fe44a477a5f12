"""The timing table: one training on different devices, strategies and launchers.

`grid` makes its cells from the values to compare (`nodes=1,2 devices=1,4 strategy=auto,horovod`), and its folder. `timing_table` reads
their runs at any time and shows time, rate, speed-up and efficiency as text, CSV and a page with a plot.
"""
