"""A stand-in for the server of Weights & Biases on this machine: it takes what `wandb sync` sends, and keeps it."""

from __future__ import annotations

import gzip
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Keeps rows of history, the summary, the configuration and how the run ended."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.history, self.summary, self.config, self.complete, self.asked = {}, {}, {}, {}, []
        self.variables = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, name="wandb-stand-in").start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def end(self):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def _answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def do_GET(self):
        self.server.asked.append(self.path)
        self._answer({})

    def do_PUT(self):
        self._body()
        self._answer({})

    def do_POST(self):
        body = json.loads(self._body() or b"{}")
        if self.path.endswith("/file_stream"):
            self._take(body)
            self._answer({"limits": {}})
            return
        query, variables = body.get("query", ""), body.get("variables") or {}
        name = re.search(r"(?:query|mutation)\s+(\w+)", query)
        self.server.asked.append(name[1] if name else query[:80])
        self._answer({"data": self._data(name[1] if name else "", query, variables)})

    def _data(self, name, query, variables):
        if "upsertBucket" in query:
            if variables.get("config"):
                self.server.config = json.loads(variables["config"])
            self.server.variables |= {key: value for key, value in variables.items() if value is not None}
            project = {"id": "p", "name": variables.get("project") or "p", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": variables.get("name") or "r", "displayName": "d", "sweepName": None}
            bucket |= {"project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "viewer" in query:
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": []}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        return {}

    def _take(self, body):
        files = body.get("files") or {}
        history = files.get("wandb-history.jsonl")
        for number, line in enumerate(history["content"] if history else (), (history or {}).get("offset", 0)):
            self.server.history[number] = json.loads(line)
        for line in (files.get("wandb-summary.json") or {"content": ()})["content"]:
            self.server.summary = json.loads(line)
        if body.get("complete") is not None:
            self.server.complete = {"exitcode": body.get("exitcode"), "complete": body["complete"]}
