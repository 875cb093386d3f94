"""Mathematics: tensors in, tensors out. No file is opened here, no recipe read, no text known.

Legend. A tensor's name ends in its dimensions:

    B batch    S source length    T target length    D model width    H heads    K width of one head
    F feed-forward width    V vocabulary    M mel bands    N beams    L layers
"""
