"""Whose a process is: a job's, whatever it does to its own names, and nobody's when it only says so."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import LiveBroker, carrying, wait_until
from courtier.adapters.process.attribution import Attribution
from courtier.adapters.process.runtime import home_tag
from courtier.domain.attempts import AttemptKey


def test_every_process_of_a_job_is_its_and_no_other(own_broker: LiveBroker, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    orphan = (
        f"import os,time; os.setsid(); os.fork() and os._exit(0); open({str(ready)!r},'w').write('x'); time.sleep(1000)"
    )
    job = own_broker.submit("sh", "-c", f'{sys.executable} -c "{orphan}"; exec env -i sleep 1000', gpus=1)["id"]
    leader = own_broker.running(job)["pid"]
    wait_until(ready.exists, "an orphan")
    own = carrying(ready)
    supervisor = own_broker.supervisor(job)
    tag = home_tag(own_broker.home)
    mark = dict(pair.split(b"=", 1) for pair in Path(f"/proc/{own[-1]}/environ").read_bytes().split(b"\0") if pair)[
        b"COURTIER_MARK"
    ]
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, "COURTIER_MARK": mark.decode()}) as impostor:
        # By cgroups where this machine has them, and by ancestors alone.
        for attribution in (
            Attribution(tag, lambda: {supervisor: AttemptKey(job, 1, "1")}),
            Attribution("no-such-tag", lambda: {supervisor: AttemptKey(job, 1, "1")}),
        ):
            assert {attribution.job_of(pid) for pid in [leader, *own]} == {job}
            assert attribution.job_of(impostor.pid) is None
            assert attribution.job_of(os.getpid()) is None
            assert attribution.job_of(1) is None
            assert attribution.job_of((1 << 22) + 5) is None
        impostor.kill()
