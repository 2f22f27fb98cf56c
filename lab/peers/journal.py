"""What a comparison has found so far, in OUT/launches.jsonl: a line for each launch, written when it ends, so that a run that
is stopped loses one launch at most and --resume goes on where it stood. A key names all that a launch depends on but the
programs themselves: other sizes or samples are measured anew."""
import json
import os


class Journal:
    def __init__(self, folder, resume):
        """Without a folder nothing is written; without `resume` an older file goes."""
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
        """What is known of `key`, else what measure() finds: (it, "") is kept, (it, trouble) is not. Gives both."""
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
