"""The size of a micro-batch where the job leaves it open (batch.micro: auto), as `plan` tells it."""
import json
import math
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402


@pytest.mark.parametrize("layers, most", [("{conv: 2}, flatten", 16), ("flatten, {dense: 4}", 32)])
def test_it_is_the_largest_even_one(tmp_path, layers, most):
    """Under `reproducible` it follows from the job: 8 workers take their shares in the fewest parts of at most 16 samples, or 32 without a window."""
    for each in (1, most - 1, most, most + 1, 2 * most, 2 * most + 1):
        job = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: synthetic, synthetic: {{samples: 1000, shape: [1, 6, 6], classes: 3}}}}
model: {{type: sequential, layers: [{layers}, {{dense: 3}}]}}
batch: {{global: {8 * each}}}
comm: {{reduction: reproducible}}
""")
        done = dpt.run("plan", job, "--json", "--no-time")
        assert done.code == 0, done
        assert json.loads(done.out)["batch"]["micro"] == math.ceil(each / math.ceil(each / most)), each
