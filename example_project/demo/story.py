"""What `manage.py demo` does, step by step."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import count

from django.db.models import Count
from django.utils import timezone

from demo.browser import Browser, PageFailed
from demo.figures import Plan, collect, judge, table
from demo.processes import Child
from demo.running import ADMIN, RunningShop, say
from django_jobs import enqueue
from django_jobs.database import read_clock
from django_jobs.models import DeadLetter, Job, JobRun
from shop.models import Account, Customer, NightlyReport, Order, Product
from shop.tasks import ping, process_order, reindex_products, send_invoice_email

CLIENTS = 4
LIMIT = 115.0  # seconds for everything after the set-up
SAMPLE = "miles davis"
REFUSED = SOLD_OUT = 2
GONE = 3


class DemoFailed(Exception):
    """A step could not be done."""


@dataclass(frozen=True)
class PlannedOrder:
    name: str
    email: str
    quantities: tuple[tuple[int, int], ...]  # product id, pieces

    @property
    def fields(self) -> list[tuple[str, str]]:
        pairs = [("name", self.name), ("email", self.email)]
        for product, quantity in self.quantities:
            pairs += [("product", str(product)), ("quantity", str(quantity))]
        return pairs


class Story:
    """One run of the demo over a running shop."""

    def __init__(self, shop: RunningShop, *, orders: int) -> None:
        self.shop = shop
        self.browser = Browser(shop.web.url)
        self.deadline = time.monotonic() + LIMIT
        self.day = _unreported_day()
        self.probes: list[str] = []
        self.rebuilds = 0
        self._is_closed = False
        products = list(Product.objects.values_list("pk", flat=True))
        self.sold_out = products[:SOLD_OUT]
        customers = list(Customer.objects.filter(account__isnull=False).order_by("pk").values_list("name", "email"))
        self.refused = [email for _, email in customers[:REFUSED]]
        self.gone = list(Account.objects.order_by("pk").values_list("partner_id", flat=True)[:GONE])
        self.orders = plan_orders(orders, products=products[SOLD_OUT:], sold_out=self.sold_out, customers=customers)

    def run(self) -> bool:
        """Tell the whole story. True if every figure is what it must be."""
        worker = self.shop.start_worker()
        self.begin()
        self.probe()
        self.break_things()
        self.browser.log_in(ADMIN, self.shop.password)
        self.office()
        worker = self.trade(worker)
        self.settle("until the orders are invoiced and mailed", [process_order.name, send_invoice_email.name])
        self.night()
        self.settle("until every job has settled")
        for report in NightlyReport.objects.filter(day=self.day):
            say("report", f"{report.day}: {report.orders} orders, ${report.revenue}")
        self.repair()
        self.replay()
        self.settle("until the replayed jobs have settled")
        return self.sum_up()

    def begin(self) -> None:
        """Wait for what an earlier run has left, and count from here on."""
        if Job.objects.exists():
            self.settle("until the jobs of an earlier run have settled")
        self.since = read_clock("default")
        self.mails_before = self.shop.mailbox.received()

    def probe(self) -> None:
        """Enqueue jobs that do nothing, one by one, each committed at once and met by an idle worker."""
        self._wait_for(ping_once(), "a worker has started")
        until = time.monotonic() + 5
        while len(self.probes) < min(max(len(self.orders) // 2, 20), 100) and time.monotonic() < until:
            time.sleep(random.uniform(0.01, 0.03))  # until the worker sleeps again
            job = ping_once()
            self._wait_for(job, "a probe has ended")
            self.probes.append(job)
        say("probe", f"{len(self.probes)} jobs that do nothing, one at a time")

    def break_things(self) -> None:
        """Three causes of death: a product is gone, addresses are refused, the partner has closed accounts."""
        Product.objects.filter(pk__in=self.sold_out).update(stock=0)
        self.shop.mailbox.refuse(self.refused)
        self.shop.disturb_partner(gone=self.gone)
        say(
            "trouble",
            f"{SOLD_OUT} products sold out, {REFUSED} addresses refused, {GONE} accounts closed, a shaky partner",
        )

    def office(self) -> None:
        self.browser.get("/office/")
        self._rebuild()
        self.browser.post("/office/sync-accounts/", [])
        say("office", f"asked for a new search index and for {Account.objects.count()} account syncs")

    def trade(self, worker: Child) -> Child:
        """Place all orders through the web pages, and kill the worker while it works on some. The next worker."""
        with ThreadPoolExecutor(CLIENTS) as clients, closing(self):
            shares = [self.orders[number::CLIENTS] for number in range(CLIENTS)]
            placed = [clients.submit(self.place, share) for share in shares]
            self._crash(worker)
            time.sleep(0.5)
            worker = self.shop.start_worker()
            say("worker", f"a new one, process {worker.process.pid}; it takes the jobs back when the lease has run out")
            self._watch(placed)
        say("orders", f"{len(self.orders)} placed by {CLIENTS} clients")
        return worker

    def night(self) -> None:
        """Two schedulers start the same night's report at the same moment."""
        at = (timezone.now() + timedelta(seconds=2)).isoformat()
        schedulers = [
            self.shop.start_command("nightly_scheduler", "--day", self.day.isoformat(), "--at", at) for _ in range(2)
        ]
        for scheduler in schedulers:
            scheduler.process.wait(timeout=30)
            if scheduler.process.returncode:
                raise scheduler.complaint()
            say("night", scheduler.output.read_text().strip())
            self.shop.crew.stop(scheduler)

    def settle(self, what: str, tasks: Sequence[str] | None = None) -> None:
        """Wait until no job, of these tasks or of any, is left that will still run by itself."""
        jobs = Job.objects.all() if tasks is None else Job.objects.filter(task_name__in=tasks)
        say("waiting", what)
        shown = 0.0
        while True:
            counts = dict(jobs.values_list("status").annotate(Count("pk")).order_by("status"))
            if not counts:
                return
            if time.monotonic() > self.deadline:
                raise DemoFailed(f"{sum(counts.values())} jobs have not settled in {LIMIT:g} s: {_words(counts)}.")
            if time.monotonic() - shown > 2:
                say("", f"{_words(counts)}; {self.shop.mailbox.received()} mails")
                shown = time.monotonic()
            self.shop.crew.check()
            time.sleep(0.1)

    def repair(self) -> None:
        """Mend what the dead letters name."""
        letters = DeadLetter.objects.filter(status="open")
        errors: dict[str, list[str]] = {}
        for task, error in letters.order_by("pk").values_list("task_name", "error_text"):
            errors.setdefault(task.removeprefix("shop.tasks."), []).append(error)
        for task, texts in errors.items():
            say("dead", f"{len(texts)} x {task}, such as: {texts[0][:110]}")
        Product.objects.filter(pk__in=self.sold_out).update(stock=50)
        self.shop.mailbox.accept_all()
        self.shop.disturb_partner(gone=[])
        say("repair", "restocked, addresses mended, accounts opened again")

    def replay(self) -> None:
        """Replay all dead letters as a person does: tick them in the admin, choose the action, confirm."""
        path = "/admin/django_jobs/deadletter/"
        form = self.browser.get(path).form_with("action")
        action = next((each for each in form.choices["action"] if "replay" in each), None)
        letters = [str(pk) for pk in DeadLetter.objects.filter(status="open").values_list("pk", flat=True)]
        if action is None or not letters:
            raise DemoFailed(f"The admin offers {form.choices['action']} for {len(letters)} dead letters.")
        question = self.browser.post(path, [("action", action), *(("_selected_action", pk) for pk in letters)])
        answer = self.browser.post(path, question.form_with("_selected_action").fields)
        for message in answer.messages:
            say("admin", message.splitlines()[0])

    def sum_up(self) -> bool:
        plan = Plan(
            orders=len(self.orders),
            accounts=Account.objects.count(),
            products=Product.objects.count(),
            probes=len(self.probes) + 1,
            rebuilds=self.rebuilds,
            deaths=REFUSED + SOLD_OUT + GONE,
        )
        figures = collect(
            since=self.since,
            day=self.day,
            mails=self.shop.mailbox.received() - self.mails_before,
            doubled=self.shop.mailbox.doubled(),
            query=SAMPLE,
            probed=self.probes,
            tell=lambda text: say("search", text),
        )
        lines = judge(figures, plan)
        print(f"\n{table(lines)}\n")
        wrong = [line.label.strip() for line in lines if not line.is_right]
        if wrong:
            print(f"Not what it must be: {', '.join(wrong)}.")
        return not wrong

    def close(self) -> None:
        """Let the clients go home after the order they are placing: somebody pressed Ctrl-C, or a step failed."""
        self._is_closed = True

    def place(self, orders: Sequence[PlannedOrder]) -> None:
        """Place orders one after the other, as one client does."""
        client = Browser(self.shop.web.url)
        client.get("/basket/")
        for order in orders:
            if self._is_closed:
                return
            page = client.post("/orders/place/", order.fields)
            if "/orders/" not in page.url:
                raise PageFailed(f"An order ended at {page.url}.")

    def _watch(self, placed: Sequence[Future[None]]) -> None:
        pending = set(placed)
        while pending:
            done, pending = wait(pending, timeout=2, return_when=FIRST_EXCEPTION)
            for each in done:
                each.result()
            if pending:
                say("", f"{Order.objects.filter(placed_at__gte=self.since).count()} orders placed")
            if time.monotonic() > self.deadline:
                raise DemoFailed("The orders could not be placed in time.")

    def _crash(self, worker: Child) -> None:
        """Kill the worker while jobs with database effects are running and no mail is.

        A mail that is sent and not yet recorded when its worker dies is sent again: that is what "at least once" means.
        This demo promises that no mail is doubled, so it chooses the moment. A stopped process (SIGSTOP) changes
        nothing any more: what is read then is what the kill meets.
        """
        patience = time.monotonic() + 4  # for an order; then a page of the search index will do
        while time.monotonic() < self.deadline:
            wanted = [process_order.name]
            if time.monotonic() > patience:
                wanted.append(reindex_products.name)
                if not Job.objects.filter(task_name=reindex_products.name).exists():
                    self._rebuild()
            if _is_a_moment(wanted) and self._kill_if_still(worker, wanted):
                return
            time.sleep(0.001)
        raise DemoFailed("There was no moment with a database job at work and no mail.")

    def _kill_if_still(self, worker: Child, wanted: Sequence[str]) -> bool:
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(0.02)  # a statement that is under way in the database ends
        if not _is_a_moment(wanted):
            worker.process.send_signal(signal.SIGCONT)
            return False
        running = {name.removeprefix("shop.tasks."): number for name, number in _running().items()}
        self.shop.crew.kill(worker)
        say("worker", f"killed process {worker.process.pid} (SIGKILL) while it ran {_words(running)}")
        return True

    def _rebuild(self) -> None:
        self.browser.post("/office/rebuild-search/", [])
        self.rebuilds += 1

    def _wait_for(self, job: str, what: str) -> None:
        while not JobRun.objects.filter(job_id=job, is_last=True).exists():
            if time.monotonic() > self.deadline:
                raise DemoFailed(f"It took too long until {what}.")
            self.shop.crew.check()
            time.sleep(0.003)


def _is_a_moment(wanted: Sequence[str]) -> bool:
    running = _running()
    return any(running[name] for name in wanted) and not running[send_invoice_email.name]


def _running() -> Counter[str]:
    return Counter(Job.objects.filter(status="running").values_list("task_name", flat=True))


def _unreported_day() -> date:
    """Today, or on a database where the demo ran before the last day that has no report yet."""
    reported = set(NightlyReport.objects.values_list("day", flat=True))
    return next(day for day in (timezone.localdate() - timedelta(days=back) for back in count()) if day not in reported)


def ping_once() -> str:
    return str(enqueue(ping).id)


def plan_orders(
    number_of_orders: int, *, products: Sequence[int], sold_out: Sequence[int], customers: Sequence[tuple[str, str]]
) -> list[PlannedOrder]:
    """The same orders on every run, of one to three tracks. The first customers, and what is sold out, appear once."""
    source = random.Random(number_of_orders)
    buyers = customers[REFUSED:]
    orders = []
    for number in range(number_of_orders):
        name, email = customers[number] if number < REFUSED else buyers[number % len(buyers)]
        picked = {each: source.randint(1, 3) for each in source.sample(products, source.randint(1, 3))}
        if REFUSED <= number < REFUSED + len(sold_out):
            picked[sold_out[number - REFUSED]] = 1
        orders.append(PlannedOrder(name, email, tuple(picked.items())))
    return orders


def _words(counts: dict[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
