"""JSON by the C code under `json`: the program may have a module of that name."""


def as_json(plain):
    """As `json.dumps` writes it."""
    try:
        from _json import encode_basestring_ascii, make_encoder
    except ImportError:
        import json

        return json.dumps(plain)
    encode = make_encoder({}, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return "".join(encode(plain, 0))
