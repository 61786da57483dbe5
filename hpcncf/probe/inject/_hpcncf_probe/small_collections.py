"""Replace the few parts of `collections` that the probe's private copy of `dis` needs.

Python's `namedtuple` evaluates text. In a program that Ctrl-C is just ending, even in another
thread, that has Python forget the interrupt, and the program would exit with 1.
"""

from _operator import itemgetter


def namedtuple(typename, field_names, *, defaults=()):
    """Create a tuple class with named items, which are given by position or by name."""
    names = field_names.split() if isinstance(field_names, str) else tuple(field_names)
    first_default = len(names) - len(defaults)
    by_default = dict(zip(names[first_default:], defaults))

    def make(cls, *values, **named):
        for name in names[len(values) :]:
            values += (named[name] if name in named else by_default[name],)
        return tuple.__new__(cls, values)

    members = {name: property(itemgetter(at)) for at, name in enumerate(names)}
    members["_fields"] = tuple(names)
    return type(typename, (tuple,), {"__new__": make, "__slots__": (), **members})
