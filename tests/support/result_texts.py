"""Texts of the results of calls that were interrupted, as a person and the model read them."""

NEVER_STARTED = "Not run: the run was interrupted while this call waited for others."
NOT_STARTED = "Not run: the run was interrupted before this call had started."
UNDECIDED = "Not run: the run was interrupted while this call waited for a person's approval."
REMOVED = "Not run: a person took this call out of the plan."
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)
