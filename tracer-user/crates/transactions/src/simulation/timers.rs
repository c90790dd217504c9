//! What an idle loop of the simulated host does for itself.

use super::*;

impl Host<'_> {
    /// A timer of the loop is due while it has nothing to do for anybody: it makes a call of its own.
    pub(super) fn asks_for_itself(&mut self, tid: u32) {
        let n = self.number();
        let path = format!("/t{n}");
        self.truth.spans.insert((Side::Client, path.clone()), None);
        self.truth.spans.insert((Side::Server, path.clone()), Some((Side::Client, path.clone())));
        self.waits(tid, true);
        self.works(tid);
        self.acting = if self.tasks { self.makes(0) } else { 0 };
        let old = if self.choices.once_in(3) { None } else { self.free_links.pop() };
        let link = old.unwrap_or_else(|| self.connects(tid));
        let Link { client, server, served_by } = self.links[link];
        self.moves(front(tid), tid, client, true, &request(&path));
        let task = self.acting;
        self.waits(served_by, false);
        self.moves(BACK, served_by, server, false, &request(&path));
        self.works(served_by);
        self.moves(BACK, served_by, server, true, &reply());
        self.waits(tid, true);
        self.reads(true, client);
        self.moves(front(tid), tid, client, false, &reply());
        self.ends_task(task);
        self.free_links.push(link);
    }
}
