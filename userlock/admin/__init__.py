"""Administration: facts about locks, jobs, requests and servers, and commands for operators."""
