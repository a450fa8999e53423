"""A page about one run or many: reads (``runs``), groups (``differences``), draws (``charts``), writes (``document``).

A report reads the files of runs and changes nothing; ``document`` can show its page while they go on. It needs neither
torch nor the network.
"""
