"""Names of nodes that resolve to nothing, to this node or to others."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from train_anywhere.distributed.network import addresses as network
from train_anywhere.distributed.network.addresses import (
    LOOPBACK_INTERFACE,
    addresses,
    interface_to_others,
    interface_towards,
    node_name,
    prepare_network,
    resolves_own_name,
)
from train_anywhere.distributed.topology import Topology

NETWORK, OWN = next(
    (
        ([name], address.address)
        for name, found in psutil.net_if_addrs().items()
        for address in found
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ),
    ([], "127.0.0.1"),
)
NEEDED = (
    not OWN.startswith("127."),
    "connect this machine to a network: only its loopback interface has an address",
)
Require = Callable[[object, str], None]


def two_nodes(address: str, *hosts: str) -> Topology:
    return Topology(
        world_size=2, nodes=2, coordinator_address=address, hosts=tuple((host, 1) for host in hosts)
    )


def call_this_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


def test_one_node_stays_on_loopback_unless_the_user_named_an_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert prepare_network(Topology()) == Topology()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == (LOOPBACK_INTERFACE, "ib0")


@pytest.mark.parametrize("name", ["localhost", "127.0.1.1", "::1", "a-name-of-nobody.invalid", "x" * 70])
def test_a_node_that_does_not_know_its_address_uses_the_interface_to_the_others(
    name: str, monkeypatch: pytest.MonkeyPatch, require: Require
) -> None:
    require(*NEEDED)
    call_this_node(name, monkeypatch)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert not resolves_own_name()
    prepare_network(two_nodes(OWN))
    assert [os.environ["GLOO_SOCKET_IFNAME"]] == NETWORK
    assert "NCCL_SOCKET_IFNAME" not in os.environ  # NCCL leaves loopback out itself
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    prepare_network(two_nodes(OWN))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"


def test_a_node_that_knows_its_address_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, require: Require
) -> None:
    require(*NEEDED)
    call_this_node(OWN, monkeypatch)
    prepare_network(two_nodes(OWN))
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_the_first_node_looks_for_another_one(monkeypatch: pytest.MonkeyPatch, require: Require) -> None:
    """Its own name, at which the others reach it, leads to loopback there."""
    require(*NEEDED)
    monkeypatch.setattr(network, "ANYWHERE", "localhost")
    assert interface_to_others(two_nodes("localhost", "localhost")) is None
    assert [interface_to_others(two_nodes("localhost", "localhost", OWN))] == NETWORK


def test_interfaces() -> None:
    assert interface_towards("127.0.0.1") == LOOPBACK_INTERFACE
    assert interface_towards("not an address") is None


def test_slurm_is_asked_for_names_that_no_resolver_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = tmp_path / "scontrol"
    client.write_text(
        '#!/bin/sh\n[ "$*" = "--oneliner show node c1.invalid,c2.invalid" ] || exit 1\n'
        "for n in 1 2; do echo NodeName=c$n.invalid Arch=x86_64 Comment=a NodeAddr=10.0.0.$n NodeHostName=real$n; done\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    hosts = ["localhost", "c1.invalid", "c2.invalid"]
    assert addresses(hosts) == {host: host for host in hosts}
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert addresses(hosts) == {"localhost": "localhost", "c1.invalid": "10.0.0.1", "c2.invalid": "10.0.0.2"}
    assert addresses(["c3.invalid"]) == {"c3.invalid": "c3.invalid"}
    assert "c3.invalid: this node can't resolve the name. scontrol failed" in capsys.readouterr().err


def test_a_node_has_the_name_that_slurm_gives_it() -> None:
    assert node_name({"SLURMD_NODENAME": "c1"}) == "c1"
    assert node_name({}) == socket.gethostname()
