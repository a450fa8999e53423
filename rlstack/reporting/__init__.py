"""A page about one run or many: read (``runs``), grouped (``differences``), drawn (``charts``), written (``document``).

A report reads what runs have left on disk and changes nothing. It needs neither torch nor the network.
"""
