"""What processes say between their answers: a notice goes where it belongs, one that is not known ends its process."""

import asyncio
from types import SimpleNamespace

import pytest

from mlxe_async.errors import ProtocolError
from mlxe_async.supervisor.listening import Listener


def test_a_remark_of_the_learner_is_a_warning_in_the_log_and_what_is_unknown_is_refused():
    warned = []
    story = SimpleNamespace(warn=lambda message, role: warned.append((message, role)))
    listener, process = Listener(story, asyncio.Event(), crashes=None), SimpleNamespace(name="mlxe-lrn")
    listener.notice(process, {"notice": {"kind": "remark", "detail": "memory stays pageable"}})
    assert warned == [("learner.device: memory stays pageable", "learner")]
    with pytest.raises(ProtocolError, match="mlxe-lrn sent a notice that is not known"):
        listener.notice(process, {"notice": {"kind": "remark", "detail": 7}})
