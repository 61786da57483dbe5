"""What a user can fix. Everything else that goes wrong is our bug and keeps its traceback."""


class HpcncfError(Exception):
    """For the user: where, what was expected, what came, what is possible. Exit code 1."""


class UsageError(HpcncfError):
    """The request itself is wrong: an argument or a job file. Exit code 2."""


def nearest(word: str, known: list[str]) -> str:
    """` Did you mean 'x'?` where one of the known words is close, else nothing."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def shown(value: object) -> str:
    """What came, as Python spells it, short: a whole file or a nest of lists helps nobody."""
    import reprlib

    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict = 3, 4, 4
    short.maxstring = short.maxother = short.maxlong = 100
    text = short.repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
