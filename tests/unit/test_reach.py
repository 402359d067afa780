"""Why node 0 cannot be reached, in words."""

from __future__ import annotations

import errno

import pytest

from ddp_run.supervise.nodes.link import Reach, of_errno
from ddp_run.supervise.nodes.reach import command, if_this_host, in_words, silence


@pytest.mark.parametrize("control", Reach)
@pytest.mark.parametrize("master", Reach)
def test_whatever_the_ports_answer_there_are_words_and_a_command(control: Reach, master: Reach) -> None:
    words = in_words(control, master, whose="node 0", control_port=29501, master_port=29500)
    assert ("29501" in words) or control is Reach.HUNG_UP
    assert "10.0.0.1" in command(control, address="10.0.0.1", control_port=29501)


def test_what_a_socket_says() -> None:
    codes = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EMFILE)
    assert [*map(of_errno, codes)] == [Reach.REFUSED, Reach.SILENT, Reach.NO_ROUTE, Reach.NO_ROUTE, Reach.FAILED]


def test_an_address_of_every_host_is_said() -> None:
    for own in ("127.0.0.1", "127.0.1.1", "::1"):
        assert if_this_host(own) == f"; {own} is this host: nodes on other hosts need another address of it"
    for other in ("10.0.0.1", "fe80::1%eth0"):
        assert if_this_host(other) == ""


def test_what_is_known_of_a_silent_node_is_said() -> None:
    stands_still = silence(13, answers=True, has_route=True)
    assert stands_still.startswith("no sign of life for 13 s; its host answers, so its ddp-run stands still")
    assert "its host does not answer either" in silence(13, answers=False, has_route=True)
    assert "the network of this host is down" in silence(13, answers=False, has_route=False)
