class ExactRows:
    """How wide a decoder's decodes may be, and the row that is looked at again."""
