"""A page about one run or many: read (``runs``), compared (``differences``, ``scores``), drawn (``charts``), written.

A report reads what runs have left on disk and changes nothing. It needs neither torch nor the network.
"""
