import asyncio
import threading
import time
from contextlib import aclosing

import pytest

from tests.unit.pretend_plan import PretendPlan, PretendTokenizer
from trivet.base.errors import CheckpointError, RequestError, UnavailableError
from trivet.framework.engine.engine import Engine
from trivet.framework.engine.params import SamplingParams
from trivet.framework.engine.sequence import new_request
from trivet.framework.engine.worker import AsyncEngine, _Add, _Mailbox

ENDLESS = SamplingParams(seed=1, ignore_eos=True)
SHORT = SamplingParams(seed=1, max_tokens=5, ignore_eos=True)


class SlowPlan(PretendPlan):
    """Every step waits for `gate`."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Semaphore(0)

    def run(self, batch, arriving=()):
        assert self.gate.acquire(timeout=10)
        return super().run(batch, arriving)


def with_worker(scenario, plan=None):
    """Run `scenario(worker, plan)` against a started worker, closed behind it; nothing may take 20 seconds."""
    plan = plan or PretendPlan()
    worker = AsyncEngine(Engine(plan, PretendTokenizer()))
    worker.start()
    try:
        return asyncio.run(asyncio.wait_for(scenario(worker, plan), 20))
    finally:
        for _ in range(100):
            getattr(plan, "gate", threading.Semaphore()).release()
        worker.close()


async def answer(worker, request_id="a", params=SHORT):
    return [delta async for delta in worker.generate((3, 4), params, request_id)]


def test_many_requests_at_once_give_what_each_gives_alone():
    async def scenario(worker, plan):
        alone = [await answer(worker, f"{i}", SamplingParams(seed=i, max_tokens=9, n=2)) for i in range(12)]
        together = await asyncio.gather(
            *(answer(worker, f"{i}", SamplingParams(seed=i, max_tokens=9, n=2)) for i in range(12))
        )
        for one, other in zip(alone, together, strict=True):
            assert sorted(one, key=lambda delta: delta.index) == sorted(other, key=lambda delta: delta.index)

    with_worker(scenario)


def test_closing_the_iterator_aborts_the_request():
    async def scenario(worker, plan):
        async with aclosing(worker.generate((3, 4), ENDLESS, "a")) as deltas:
            plan.gate.release()
            await anext(deltas)
        plan.gate.release(2)
        # Were it still running, this would wait for all of its context.
        assert await worker.drain(timeout_s=5)
        assert len(plan.batches) <= 3

    with_worker(scenario, SlowPlan())


def test_a_cancelled_reader_aborts_its_request():
    async def scenario(worker, plan):
        task = asyncio.create_task(answer(worker, "a", ENDLESS))
        plan.gate.release()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        plan.gate.release(2)
        assert await worker.drain(timeout_s=5)

    with_worker(scenario, SlowPlan())


def test_an_aborted_request_ends_with_abort():
    async def scenario(worker, plan):
        deltas = worker.generate((3, 4), ENDLESS, "a")
        plan.gate.release()
        await anext(deltas)
        worker.abort("a")
        plan.gate.release()
        rest = [delta async for delta in deltas]
        assert "abort" == rest[-1].finish_reason

    with_worker(scenario, SlowPlan())


def test_bad_requests_are_refused_before_anything_is_awaited():
    async def scenario(worker, plan):
        with pytest.raises(RequestError, match="prompt is empty"):
            worker.generate((), SHORT, "a")
        with pytest.raises(RequestError, match="top_p"):
            worker.generate((3,), SamplingParams(top_p=7), "a")

    with_worker(scenario)


def test_an_id_in_use_is_refused_and_the_first_goes_on():
    async def scenario(worker, plan):
        first = asyncio.create_task(answer(worker, "a"))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="in use"):
            await answer(worker, "a")
        plan.gate.release(10)
        assert "length" == (await first)[-1].finish_reason

    with_worker(scenario, SlowPlan())


def test_draining_finishes_what_runs_and_refuses_what_comes():
    async def scenario(worker, plan):
        running = asyncio.create_task(answer(worker))
        await asyncio.sleep(0)
        draining = asyncio.create_task(worker.drain(timeout_s=10))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="draining"):
            worker.generate((3,), SHORT, "b")
        assert not worker.is_accepting
        plan.gate.release(10)
        assert await draining
        assert "length" == (await running)[-1].finish_reason
        assert worker.is_alive

    with_worker(scenario, SlowPlan())


def test_a_drain_that_takes_too_long_aborts():
    async def scenario(worker, plan):
        running = asyncio.create_task(answer(worker, "a", ENDLESS))
        plan.gate.release()
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.2, plan.gate.release, 2)
        assert not await worker.drain(timeout_s=0.05)
        assert "abort" == (await running)[-1].finish_reason

    with_worker(scenario, SlowPlan())


def test_a_worker_whose_model_was_damaged_answers_what_runs_and_takes_nothing_more(monkeypatch):
    async def scenario(worker, plan):
        def damaged():
            raise CheckpointError("model.safetensors was cut before byte 4096 while a model was loaded from it")

        monkeypatch.setattr("trivet.framework.engine.worker.check_files", damaged)
        plan.run = lambda *_: damaged()
        assert "error" == (await answer(worker))[-1].finish_reason
        worker._thread.join(5)
        assert not worker.is_alive
        with pytest.raises(UnavailableError, match=r"died.*was cut before byte 4096"):
            worker.generate((3,), SHORT, "late")

    with_worker(scenario)


def test_a_dead_thread_fails_every_waiter_and_every_later_request():
    async def scenario(worker, plan):
        class Broken(Exception):
            pass

        def step():
            raise Broken("an invariant is gone")

        worker._engine.step = step
        results = await asyncio.gather(*(answer(worker, f"{i}") for i in range(4)), return_exceptions=True)
        assert [UnavailableError] * 4 == [type(result) for result in results]
        worker._thread.join(5)
        assert not worker.is_alive
        with pytest.raises(UnavailableError, match=r"died.*an invariant is gone"):
            worker.generate((3,), SHORT, "late")
        assert await worker.drain(timeout_s=1)

    with_worker(scenario)


def test_closing_fails_who_still_waits():
    async def scenario(worker, plan):
        waiting = asyncio.create_task(answer(worker, "a", ENDLESS))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_later(0.05, plan.gate.release, 1)
        await asyncio.to_thread(worker.close)
        with pytest.raises(UnavailableError, match="stopped"):
            await waiting

    with_worker(scenario, SlowPlan())


def test_an_event_loop_that_is_gone_does_not_take_the_engine_with_it():
    plan = SlowPlan()
    worker = AsyncEngine(Engine(plan, PretendTokenizer()))
    worker.start()

    async def leave():
        worker._messages.put(_Add(new_request("gone", (3, 4), ENDLESS), _Mailbox()))

    asyncio.run(leave())
    plan.gate.release(100)

    assert "length" == asyncio.run(asyncio.wait_for(answer(worker, "b"), 10))[-1].finish_reason
    worker.close()
    assert not worker._engine.has_work


def test_an_idle_worker_uses_no_processor_time():
    async def scenario(worker, plan):
        await answer(worker)
        before = _thread_seconds(worker)
        await asyncio.sleep(0.3)
        assert _thread_seconds(worker) - before < 0.05

    with_worker(scenario)


def _thread_seconds(worker):
    return time.clock_gettime(time.pthread_getcpuclockid(worker._thread.ident))


def test_before_start_and_after_close_requests_are_refused():
    async def ask(worker):
        worker.generate((3,), SHORT, "a")

    worker = AsyncEngine(Engine(PretendPlan(), None))
    with pytest.raises(UnavailableError, match="not started"):
        asyncio.run(ask(worker))
    worker.close()
    with pytest.raises(UnavailableError, match="stopped"):
        asyncio.run(ask(worker))
