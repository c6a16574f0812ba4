"""keep_freed_memory: what a step frees comes back to the next one without the kernel."""

import platform

import pytest

PAGE_FAULTS = """
import resource, torch
from fedfacet.parallel.processes import keep_freed_memory
if {keep}:
    keep_freed_memory()
for _ in range(20):
    torch.empty(48 << 18).fill_(1)  # 48 MiB, which glibc by itself returns to the kernel
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.empty(48 << 18).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_memory_is_not_fetched_again_page_by_page(start_script, tmp_path):
    def faults(keep):
        script = tmp_path / "script.py"
        script.write_text(PAGE_FAULTS.format(keep=keep))
        done = start_script(tmp_path, script).result()
        assert done.status == 0, done.err
        return int(done.out)

    assert faults(keep=True) * 10 < faults(keep=False)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("it was called"))
    from fedfacet.parallel.processes import keep_freed_memory

    keep_freed_memory()
