"""Count the rows of an embedding table that have a gradient, compared with all its rows.

Counted in a few steps only, from the gradients themselves, in pieces: a table may be as large as
the memory.
"""

AT_STEPS = frozenset((2, 19, 199))
LARGE_ROWS = 2000
PIECES = 16
PIECE_ROWS = 2048

SEEN = {}


def look(torch, optimizer):
    """Record the optimizer's tables; after an error they stay unknown."""
    try:
        SEEN[id(optimizer)] = _look(torch, optimizer)
    except Exception:
        SEEN.setdefault(id(optimizer), None)


def _look(torch, optimizer):
    tables, parameters = [], 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameters += parameter.numel()
            if type(parameter).__name__ == "RowwiseParameter":  # of hpcncf.remedies
                tables.append([*parameter.shape, None, True])
                continue
            gradient = parameter.grad
            if parameter.dim() != 2 or parameter.shape[0] < LARGE_ROWS or gradient is None:
                continue
            if gradient.device.type != "cpu" or gradient.layout is not torch.strided:
                sparse = gradient.layout is not torch.strided
                tables.append([*parameter.shape, None, sparse])
                continue
            tables.append([*parameter.shape, _rows(gradient.detach()), False])
    return {
        "optimizer": type(optimizer).__name__,
        "fused": any(group.get("fused") for group in optimizer.param_groups),
        "parameters": parameters,
        "tables": tables,
    }


def _rows(gradient):
    """Estimate how many rows have a nonzero gradient, from PIECES runs of rows."""
    rows = gradient.shape[0]
    step = max(PIECE_ROWS, rows // PIECES)
    touched = looked_at = 0
    for begin in range(0, rows, step):
        piece = gradient[begin : begin + PIECE_ROWS]
        touched += int(piece.ne(0).any(1).sum())
        looked_at += piece.shape[0]
    return round(touched * rows / looked_at)
