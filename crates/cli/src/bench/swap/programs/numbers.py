# A large numeric sort: with NumPy where it is there, else with arrays.
import array
import hashlib
import sys

goal_bytes = int(sys.argv[1])
# Words that a hash makes of a counter: incompressible, the same in every run.
noise = lambda count: hashlib.shake_128(b"numbers").digest(8 * count)
digest = hashlib.sha256()
try:
    import numpy
    # The numbers, their order, and the numbers in that order.
    numbers = numpy.frombuffer(noise(goal_bytes // 40), dtype=numpy.uint64)
    order = numpy.argsort(numbers, kind="quicksort")
    ordered = numbers[order]
    digest.update(ordered.tobytes())
except ImportError:
    numbers = array.array("Q", noise(goal_bytes // 72))
    ordered = array.array("Q", sorted(numbers))
    digest.update(memoryview(ordered).cast("B"))
print(digest.hexdigest())
