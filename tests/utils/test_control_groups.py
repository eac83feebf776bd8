"""utils/control_groups.py: the CPU time of a container, in both versions of control groups."""

import math
import os

import pytest

from utils.control_groups import cpu_quota

VERSION_2 = {"proc/self/cgroup": "0::/job/step\n"}
VERSION_1 = {"proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"}
CONTAINER = {"proc/self/cgroup": "3:cpu,cpuacct:/docker/0123\n"}  # its own group is at the base


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        (VERSION_2, math.inf),
        (VERSION_2 | {"sys/fs/cgroup/job/step/cpu.max": "max 100000\n"}, math.inf),
        (VERSION_2 | {"sys/fs/cgroup/job/step/cpu.max": "250000 100000\n"}, 2.5),
        # that of the parent is smaller
        (
            VERSION_2
            | {
                "sys/fs/cgroup/job/step/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            VERSION_1
            | {
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            CONTAINER
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            CONTAINER
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
        (VERSION_2 | {"sys/fs/cgroup/job/cpu.max": "100000 0\n"}, math.inf),
        (VERSION_2 | {"sys/fs/cgroup/job/cpu.max": "much\n"}, math.inf),
    ],
)
def test_cpu_quota_is_the_smallest_of_all_groups(tmp_path, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_name_of_a_group_may_be_in_any_encoding(tmp_path):
    group = b"gr\xfcn"
    folder = os.path.join(os.fsencode(tmp_path), b"sys/fs/cgroup", group)
    os.makedirs(folder)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/" + group + b"\n")
    with open(os.path.join(folder, b"cpu.max"), "w") as file:
        file.write("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
