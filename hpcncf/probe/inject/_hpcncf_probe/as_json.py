"""Write JSON by Python's C encoder, because the program may have a module named `json`."""


def as_json(plain):
    """Return the same text as `json.dumps`."""
    try:
        from _json import encode_basestring_ascii, make_encoder
    except ImportError:
        import json

        return json.dumps(plain)
    encode = make_encoder({}, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return "".join(encode(plain, 0))
