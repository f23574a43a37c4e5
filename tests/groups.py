"""Workers that learn together, of which one is asked and the others have given their numbers already."""


class Others:
    """A group whose other workers gave these statistics; `given` is what was given by the one that is asked."""

    def __init__(self, *numbers):
        self.numbers, self.given, self.workers = numbers, [], 1 + len(numbers)

    def give(self, kind, numbers):
        self.given.append((kind, numbers.tolist()))
        return lambda: [numbers, *self.numbers]
