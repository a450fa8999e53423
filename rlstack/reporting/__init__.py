"""A page about one run or many: reads (``runs``), groups (``differences``), draws (``charts``), writes (``document``).

A report reads the files of runs and changes nothing. It needs neither torch nor the network.
"""
