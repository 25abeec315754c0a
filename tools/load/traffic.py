"""The clients and their requests, for a few learners only, so that requests contend."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from sample_app import catalogue
from sample_app.words import counted
from tools.load.answers import Answers
from tools.load.browser import Answer, Browser

LEARNERS = ("ada", "bruno", "chen", "dalia")
COACHES = {"coach:mira": ("ada", "bruno", "chen"), "coach:tomas": ("dalia", "chen", "bruno")}
BONUS_POINTS = 1
#: Learners that only programs change, so that accepted updates can be counted.
COUNTED = ("counted-1", "counted-2")

_PROJECT = re.compile(r'href="(/projects/\d+)"')


class Traffic:
    """Requests from many threads until `stop`."""

    def __init__(self, host: str, *, seed: int = 0) -> None:
        self._host = host
        self._seed = seed
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self.answers = Answers()
        #: The number of accepted rounds of a learner, and points of a coach.
        self.accepted: Counter[str] = Counter()

    def prepare(self) -> None:
        """Create the learners and coaches."""
        browser = Browser(self._host)
        for answer in (
            *browser.post("/tasks/seed", "/tasks/seed"),
            *(
                answer
                for each in COUNTED
                for answer in browser.post("/api/learners", "/api/learners", id=each, name=each)
            ),
        ):
            if answer.status not in {200, 201}:
                raise RuntimeError(f"the site could not be prepared: {answer}")

    def clients(self) -> list[Callable[[], None]]:
        """Return one function for each client. Each returns soon after `stop`."""
        browsers = [_Learner(self, name) for name in LEARNERS for _ in range(2)]
        programs = [_Program(self, name) for name in COUNTED for _ in range(2)]
        coaches = [_Coach(self, coach) for coach in COACHES]
        clients: Sequence[_Client] = (*browsers, *programs, *coaches, _Scheduler(self))
        return [each.run for each in clients]

    def stop(self) -> None:
        """Let each client finish its current action."""
        self._over.set()

    @property
    def over(self) -> bool:
        """Return whether `stop` was called."""
        return self._over.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for that time, or until `stop`."""
        self._over.wait(seconds)

    def accept(self, who: str, many: int = 1) -> None:
        """Count an update that the site has confirmed."""
        with self._mutex:
            self.accepted[who] += many

    def client(self, name: str) -> tuple[Browser, random.Random]:
        """Return a browser and a random generator for a client; its choices are the same in each
        run.
        """
        return Browser(self._host), random.Random(f"{self._seed} {name}")


class _Client:
    def __init__(self, traffic: Traffic, name: str) -> None:
        self.traffic = traffic
        self.name = name
        self.browser, self.chance = traffic.client(name)

    def run(self) -> None:
        self.begin()
        while not self.traffic.over:
            self.step()

    def begin(self) -> None:
        pass

    def step(self) -> None:
        raise NotImplementedError

    def get(self, what: str, path: str) -> Answer:
        answer = self.browser.get(what, path)
        self.traffic.answers.add(answer)
        return answer

    def post(self, what: str, path: str, **form: str | list[str]) -> list[Answer]:
        answers = self.browser.post(what, path, **form)
        self.traffic.answers.add(*answers)
        return answers


class _Learner(_Client):
    """A learner's browser: views, answers, reads, manages projects. Each learner has two."""

    def begin(self) -> None:
        self.post("/sign-in", "/sign-in", learner=self.name)

    def step(self) -> None:
        self.chance.choice(
            (self.look_around, self.answer, self.read, self.begin_project, self.tidy_up)
        )()

    def look_around(self) -> None:
        self.get("/", "/")
        self.get("/learners/…", f"/learners/{self.chance.choice(LEARNERS)}")

    def answer(self) -> None:
        exercise = self.chance.choice(catalogue.EXERCISES)
        path = f"/exercises/{exercise.slug}"
        self.get("/exercises/…", path)
        form: dict[str, str | list[str]] = {
            f"question-{number}": str(self.chance.choice((question.right, 0)))
            for number, question in enumerate(exercise.questions)
        }
        self.post("/exercises/…", path, **form)

    def read(self) -> None:
        video = self.chance.choice(catalogue.VIDEOS)
        path = f"/videos/{video.slug}"
        self.post("/videos/…", path)
        part = self.chance.randrange(len(video.parts))
        self.post("/videos/…", path, part=str(part))

    def begin_project(self) -> None:
        self.post("/projects", "/projects", title=f"Project {self.chance.randrange(5)}")

    def tidy_up(self) -> None:
        found = _PROJECT.findall(self.get("/projects", "/projects").text)
        if found:
            # The other window may have deleted it meanwhile, which is no error.
            self.post("/projects/…/delete", f"{self.chance.choice(found)}/delete")


class _Program(_Client):
    """A program that reports rounds done elsewhere."""

    def begin(self) -> None:
        self.post("/sign-in", "/sign-in", learner=self.name)

    def step(self) -> None:
        path = f"/api/learners/{self.name}"
        (answer,) = self.post("/api/…/finish", f"{path}/exercises/primes/finish")
        if answer.status == 200:
            self.traffic.accept(self.name)
        self.get("/api/learners/…", path)


class _Coach(_Client):
    """A coach, who gives points to the group, under all their locks."""

    def begin(self) -> None:
        self.post("/sign-in", "/sign-in", coach=self.name)

    def step(self) -> None:
        group = self.chance.sample(COACHES[self.name], 2)
        answers = self.post(
            "/coach",
            "/coach",
            learner=group,
            points=str(BONUS_POINTS),
            request=f"{self.chance.getrandbits(128):032x}",
        )
        said = f"{counted(BONUS_POINTS, 'point')} each for {counted(len(group), 'learner')}"
        if said in answers[-1].text:
            self.traffic.accept(self.name, BONUS_POINTS * len(group))
        self.traffic.wait(0.2)


class _Scheduler(_Client):
    """A scheduler, which runs the nightly job repeatedly and fetches its page."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic, "scheduler")

    def step(self) -> None:
        self.post("/tasks/award-badges", "/tasks/award-badges")
        self.get("/nightly", "/nightly")
        self.traffic.wait(0.5)
