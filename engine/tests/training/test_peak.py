"""Peaks of chips by the names that their drivers give them, and shares of them."""

import pytest

from src.models.gpt import flops_per_token
from train_anywhere.training.reporting.header import peak_flops
from train_anywhere.training.reporting.progress import MIN_MEASURED_S, Throughput

PEAKS = {
    ("NVIDIA A100-SXM4-80GB", "bf16-mixed", False): 312e12,
    ("NVIDIA A100-PCIE-40GB", "32", False): 19.5e12,
    ("NVIDIA A100-PCIE-40GB", "32", True): 156e12,
    ("NVIDIA H100 80GB HBM3", "bf16-mixed", False): 989.5e12,
    ("NVIDIA H100 PCIe", "16-mixed", False): 756e12,
    ("NVIDIA H100 NVL", "bf16-mixed", False): 835.5e12,
    ("NVIDIA H200", "bf16-mixed", True): 989.5e12,
    ("NVIDIA GH200 480GB", "32", False): 67e12,
    ("Tesla V100-SXM2-32GB", "16-mixed", True): 125e12,
    ("Tesla V100-PCIE-16GB", "32", True): 14e12,
    ("NVIDIA L40S", "bf16-mixed", False): 362e12,
    ("Tesla T4", "16-mixed", False): 65e12,
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "32", False): None,
    ("Tesla V100-SXM2-32GB", "bf16-mixed", False): None,
    ("NVIDIA GeForce RTX 3090", "32", False): None,
    ("Intel(R) Xeon(R) Gold 6240", "32", False): None,
    ("", "32", False): None,
}
"""Chip, precision and TF32 -> FLOP/s."""


def test_chips_by_their_names() -> None:
    assert {known: peak_flops(*known) for known in PEAKS} == PEAKS


def test_a_share_of_the_peak_of_each_chip() -> None:
    """GPT-2 in rows of 1024: 6 * 123.5 M weights, 12 * 12 * 768 * 1024 of attention, 2 A100."""
    needed = flops_per_token(50257, 1024, layers=12, heads=12, kv_heads=12, width=768)
    assert needed == pytest.approx(6 * 123.55e6 + 113.2e6, rel=1e-3)
    most = peak_flops("NVIDIA A100-SXM4-80GB", "bf16-mixed")
    assert most
    meter = Throughput(rows=8, world_size=2, unit="tokens", min_seconds=needed / most)
    assert meter.peak_share(100_000) == ", 13.7% of the chip's peak"
    meter.rates, meter.seconds = [100_000.0, 100_000.0], MIN_MEASURED_S
    assert (meter.summary() or "").endswith("per device, 13.7% of the chip's peak")


def test_nothing_is_said_where_no_peak_is_known() -> None:
    assert Throughput(rows=8, world_size=2, unit="tokens").peak_share(100_000) == ""
