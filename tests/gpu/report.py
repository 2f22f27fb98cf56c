"""The report: markdown, written again when a step begins and when it has ended, so that results are kept whatever
happens next."""
import os
import time

import goals

MARKS = {"passed": "passed", "failed": "**FAILED**", "skipped": "skipped", "late": "**OUT OF TIME**", "left out": "left out",
         "running": "running"}
WORST = ("running", "failed", "late", "left out", "passed", "skipped")


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")[:1500]


class Stage:
    def __init__(self, name, words):
        self.name, self.words = name, words
        self.steps = []  # (name, state, seconds, words)
        self.answers = []  # (question, answer): a step's results, a row each
        self.blocks = []  # (title, text)
        self.start, self.seconds, self.running = time.monotonic(), 0.0, True
        self.step = None  # the step in progress

    def state(self):
        states = {step[1] for step in self.steps} | ({"running"} if self.running else set())
        return next((state for state in WORST if state in states), "left out")


class Report:
    def __init__(self, path, title):
        self.path, self.title = path, title
        self.facts, self.stages = [], []
        self.measured = {}  # for the table of goals
        self.start = time.monotonic()
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)

    def add_stage(self, name, words):
        self.stages.append(Stage(name, words))
        self.write()
        return self.stages[-1]

    def end_stage(self, stage):
        stage.seconds, stage.running = time.monotonic() - stage.start, False
        self.write()

    def begin_step(self, stage, name):
        stage.step = name
        self.write()

    def add_step(self, stage, name, state, seconds, words):
        stage.steps.append((name, state, seconds, words))
        stage.step = None
        stage.seconds = time.monotonic() - stage.start
        self.write()

    def add_answers(self, stage, rows):
        stage.answers += rows
        self.write()

    def add_block(self, stage, title, text):
        stage.blocks.append((title, text))
        self.write()

    def counts(self):
        states = [step[1] for stage in self.stages for step in stage.steps]
        return {state: states.count(state) for state in MARKS}

    def lines(self):
        counts = self.counts()
        yield "# %s" % self.title
        yield ""
        yield "%s, %.0f s. %d steps passed, %d failed, %d ran out of time, %d were left out, %d skipped." % (
            time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), time.monotonic() - self.start, counts["passed"],
            counts["failed"], counts["late"], counts["left out"], counts["skipped"])
        yield ""
        for fact in self.facts:
            yield "- %s" % fact
        yield ""
        yield "| stage | result | s | what |"
        yield "| --- | --- | --- | --- |"
        for stage in self.stages:
            yield "| %s | %s | %.0f | %s |" % (stage.name, MARKS[stage.state()], stage.seconds, cell(stage.words))
        yield ""
        if self.measured:
            yield "## Goals (of an H200)"
            yield ""
            yield "| | goal | measured | met |"
            yield "| --- | --- | --- | --- |"
            for row in goals.rows(self.measured):
                yield "| %s |" % " | ".join(cell(part) for part in row)
            yield ""
        for stage in self.stages:
            yield from self.stage_lines(stage)

    @staticmethod
    def stage_lines(stage):
        yield "## %s: %s" % (stage.name, stage.words)
        yield ""
        if stage.steps or stage.step:
            yield "| step | result | s | |"
            yield "| --- | --- | --- | --- |"
            for name, state, seconds, words in stage.steps:
                yield "| %s | %s | %.1f | %s |" % (cell(name), MARKS[state], seconds, cell(words))
            if stage.step:
                yield "| %s | %s | | |" % (cell(stage.step), MARKS["running"])
            yield ""
        if stage.answers:
            yield "| asked | answer |"
            yield "| --- | --- |"
            for question, answer in stage.answers:
                yield "| %s | %s |" % (cell(question), cell(answer))
            yield ""
        for title, text in stage.blocks:
            yield "%s:" % title
            yield ""
            yield "```"
            yield text.replace("```", "'''")
            yield "```"
            yield ""

    def write(self):
        temporary = self.path + ".new"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write("\n".join(self.lines()) + "\n")
        os.replace(temporary, self.path)
