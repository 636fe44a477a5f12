"""Host lists, as `scontrol show hostnames` prints them; properties/test_ranks.py asks the real one."""

from train_anywhere.distributed.topology import expand_hosts, fold_hosts, ranges
from train_anywhere.errors import TopologyError

# As printed by Slurm 22.05.
LISTS = {
    "node1": ["node1"],
    "node1,node10,login": ["node1", "node10", "login"],
    "gpu[0012-0014,20]": ["gpu0012", "gpu0013", "gpu0014", "gpu20"],
    "gpu[0099-0101]": ["gpu0099", "gpu0100", "gpu0101"],
    "rack[1-2]node[3-4]": ["rack1node3", "rack1node4", "rack2node3", "rack2node4"],
    "alvis2-08,alvis3-[01-02]": ["alvis2-08", "alvis3-01", "alvis3-02"],
    "r[1-2]i[0-1]n[08-09]": [f"r{r}i{i}n0{n}" for i in (0, 1) for r in (1, 2) for n in (8, 9)],
    "a[1-2]b[1-2]c[1-2]d[1-2]": [f"a{a}b{b}c{c}d{d}" for c in (1, 2) for b in (1, 2) for a in (1, 2) for d in (1, 2)],
    "a[8-11],b[1,3]": ["a8", "a9", "a10", "a11", "b1", "b3"],
}  # fmt: skip


def test_expand_and_fold():
    assert {hosts: expand_hosts(hosts) for hosts in LISTS} == LISTS
    assert fold_hosts(["node3", "login", "gpu08", "gpu09", "gpu10", "gpu12"]) == "node3,login,gpu[08-10,12]"
    assert ranges([0, 1, 2, 3, 7]) == "0-3,7" and ranges([]) == ""


# `scontrol show hostnames` refuses those with brackets too
BAD = [
    "", "gpu[01-04", "a,,b", "gpu[]", "gpu[a-b]", "gpu]1[", "n[5-3]", "n[²]", "n[٣]", "n²", "größe", "n[1-2-3]",
]  # fmt: skip
BAD += ["n[-1]", "a b", "a;b", "a/b", "$(id)", "n[1,]", "n[ 1]", f"n[{'9' * 5000}]"]


def refusals(lists):
    """Return the refusal of each refused list."""
    found = {}
    for hosts in lists:
        try:
            expand_hosts(hosts)
        except TopologyError as refused:
            found[hosts] = str(refused)
    return found


def test_each_bad_list_gets_one_sentence():
    assert [hosts for hosts in BAD if "such as" not in refusals(BAD).get(hosts, "")] == []


def test_a_list_longer_than_any_job_is_refused_at_once():
    long = ["n[0-99999999999]", "n[1-300]x[1-300]", "n[1-65536],m", "a[1-9999][1-9999][1-9999]"]
    assert [
        hosts for hosts in long if "no job has more than 65536" not in refusals(long).get(hosts, "")
    ] == []
