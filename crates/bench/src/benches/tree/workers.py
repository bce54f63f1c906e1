# Runs a Python program eight times in JOBS worker processes, as joblib and similar libraries do.
import concurrent.futures
import multiprocessing
import sys

program, goal, jobs = sys.argv[1:]


def work(_):
    sys.argv[1:] = [goal]
    exec(program, {})
    sys.stdout.flush()


fork = multiprocessing.get_context("fork")
with concurrent.futures.ProcessPoolExecutor(int(jobs), fork) as pool:
    list(pool.map(work, range(8)))
