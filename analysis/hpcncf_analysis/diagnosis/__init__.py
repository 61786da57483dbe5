"""Why a run was no faster: cause, evidence, cost, remedy, expected gain."""
