"""Seconds per epoch of a configuration that was not run, from the results of those that were."""

from hpcncf_analysis.predict.answer import Prediction as Prediction
from hpcncf_analysis.predict.answer import Ran as Ran
from hpcncf_analysis.predict.answer import Refusal as Refusal
