//! A service that schedules requests itself: any of its threads goes on with any request.

use tracer_model::Side;

use super::{FRONT, Host, Job, LOOP, LOOPS, MOVES, MOVING, POOL, Sent, Step, Truth, call_path, reply, request};

/// The process of a thread of a front service.
pub(super) fn front(tid: u32) -> u32 {
    if (MOVING..POOL[0]).contains(&tid) {
        MOVES
    } else if tid == LOOP {
        LOOPS
    } else {
        FRONT
    }
}

impl Host<'_> {
    /// Plays `requests` requests, up to `clients` at a time, on `threads` threads.
    pub(in super::super) fn run_moving(mut self, requests: usize, clients: usize, threads: u32) -> (Vec<Sent>, Truth) {
        let mut jobs: Vec<Job> = Vec::new();
        let mut left = requests;
        // How often a thread goes on with the request it worked for last.
        let keeps = 1 + self.choices.below(4);
        let mut tid = MOVING;
        while left > 0 || !jobs.is_empty() {
            if left > 0 && jobs.len() < clients && (jobs.is_empty() || self.choices.once_in(2)) {
                left -= 1;
                let job = self.arrives(true);
                jobs.push(job);
            }
            if self.choices.once_in(keeps) {
                tid = MOVING + self.choices.below(threads as usize) as u32;
            }
            let at = self.choices.below(jobs.len());
            let mut job = jobs.swap_remove(at);
            if self.goes_on(tid, &mut job) {
                jobs.push(job);
            }
        }
        let mut tids: Vec<u32> = self.threads.keys().copied().collect();
        tids.sort_unstable();
        for tid in tids {
            self.dies(tid);
        }
        (self.sent, self.truth)
    }

    /// One step of a request; whether there are more.
    fn goes_on(&mut self, tid: u32, job: &mut Job) -> bool {
        if job.step != Step::Serve {
            let polls = self.choices.once_in(2);
            if self.choices.once_in(2) {
                self.waits(tid, polls);
            }
        }
        let process = front(tid);
        let next = |job: &Job| if job.calls > 0 { Step::Send } else { Step::Answer };
        match job.step {
            Step::Read => {
                self.moves(process, tid, job.end, false, &request(&job.path));
                job.step = next(job);
            }
            Step::Send => {
                let path = call_path(job);
                let above = (Side::Server, job.path.clone());
                self.truth.spans.insert((Side::Client, path.clone()), Some(above));
                self.truth.spans.insert((Side::Server, path.clone()), Some((Side::Client, path.clone())));
                let old = if self.choices.once_in(3) { None } else { self.free_links.pop() };
                let link = old.unwrap_or_else(|| self.connects(tid));
                self.moves(process, tid, self.links[link].client, true, &request(&path));
                (job.link, job.step) = (Some(link), Step::Serve);
            }
            Step::Serve => self.steps(tid, true, job),
            Step::Collect => {
                let Some(link) = job.link.take() else { return false };
                self.moves(process, tid, self.links[link].client, false, &reply());
                self.free_links.push(link);
                job.calls -= 1;
                job.step = next(job);
            }
            Step::Answer => {
                self.moves(process, tid, job.end, true, &reply());
                self.free_ends.push(job.end);
                job.step = Step::Done;
            }
            Step::Done => {}
        }
        self.works(tid);
        job.step != Step::Done
    }
}
