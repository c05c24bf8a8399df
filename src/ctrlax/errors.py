"""The errors ctrlax raises on purpose."""


class UserError(ValueError):
    """A mistake the user can mend: the message says what was expected, what came and what to do."""
