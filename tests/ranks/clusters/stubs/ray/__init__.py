"""As much of Ray as examples/clusters/ray uses: a task is a process of this machine."""
import multiprocessing

from . import util

_fork = multiprocessing.get_context("fork")


class exceptions:
    """What a task ends with that Ray has killed."""
    class RayError(Exception):
        pass


class _Task:
    def __init__(self, function, arguments):
        self.queue = _fork.SimpleQueue()
        self.process = _fork.Process(target=lambda: self.queue.put(function(*arguments)))
        self.process.start()


class _Remote:
    def __init__(self, function):
        self.function = function

    def remote(self, *arguments):
        return _Task(self.function, arguments)


def init():
    pass


def remote(num_cpus, num_gpus, max_retries, scheduling_strategy):
    assert num_cpus > 0 and num_gpus >= 0 and max_retries == 0
    assert 0 <= scheduling_strategy.index < len(scheduling_strategy.group.bundles)
    return _Remote


def get(what):
    if isinstance(what, list):
        return [get(one) for one in what]
    if isinstance(what, _Task):
        return what.queue.get()
    return what
