"""The results of a comparison so far, in OUT/launches.jsonl: a line for each launch, written when it ends, so that a
stopped run loses at most one launch and --resume continues there. A key includes all that a launch depends on except
the programs themselves: other sizes or samples are measured again."""
import json
import os


class Journal:
    def __init__(self, folder, resume):
        """Without a folder nothing is written; without `resume` an older file is deleted."""
        self.known, self.failures, self.path = {}, {}, folder and os.path.join(folder, "launches.jsonl")
        if not folder:
            return
        os.makedirs(folder, exist_ok=True)
        if resume and os.path.exists(self.path):
            self.read()
        else:
            open(self.path, "w", encoding="ascii").close()

    def read(self):
        with open(self.path, "r+", encoding="ascii") as file:
            text = file.read()
            whole = text[:text.rfind("\n") + 1]  # the last line may have been cut short
            file.truncate(len(whole))
        for line in whole.splitlines():
            key, found = json.loads(line)
            self.known[tuple(key)] = found

    def look_up(self, key, measure):
        """Returns the entry of `key`, else measure()'s result: (value, "") is kept, (value, trouble) is not."""
        if key in self.known:
            return self.known[key], ""
        found, trouble = measure()
        if not trouble:
            self.known[key] = found
            if self.path:
                with open(self.path, "a", encoding="ascii") as file:
                    file.write(json.dumps([key, found]) + "\n")
        return found, trouble

    def failure_lines(self):
        return ["%s, %s, %s: %s" % (key + (trouble,)) for key, trouble in self.failures.items()]
