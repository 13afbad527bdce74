class Constraints:
    """What the texts of a decoder's sequences have to follow.

    Args:
        n_seq: sequences.
        n_vocab: tokens of the vocabulary, which a mask has a bit for each of.
    """

    def __init__(self, n_seq: int, n_vocab: int) -> None: ...
