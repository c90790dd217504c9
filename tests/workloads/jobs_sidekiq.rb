# Jobs by Sidekiq: `serve` as the first argument serves GET /push/N, which puts the job N into a queue; Sidekiq itself loads this
# file for its workers. Each job calls GET /b/NAME/N/k0/d1 of the upstream.

require "net/http"
require "sidekiq"
require "socket"

redis = { url: "redis://127.0.0.1:#{ENV.fetch("REDIS_PORT")}/0" }
Sidekiq.configure_server { |config| config.redis = redis }
Sidekiq.configure_client { |config| config.redis = redis }

def ask(name, number)
  Net::HTTP.get(URI("http://127.0.0.1:#{ENV.fetch("UPSTREAM_PORT")}/b/#{name}/#{number}/k0/d1"))
end

class Report
  include Sidekiq::Worker
  def perform(number, _secret)
    ask("Report", number)
  end
end

module Mail
  class Welcome
    include Sidekiq::Worker
    sidekiq_options queue: "mailers"
    def perform(number, _secret)
      ask("Mail::Welcome", number)
    end
  end
end

if ARGV[0] == "serve"
  server = TCPServer.new("127.0.0.1", 0)
  puts "PORT #{server.addr[1]}"
  $stdout.flush
  loop do
    client = server.accept
    while (line = client.gets)
      number = line[%r{/push/(\d+)}, 1].to_i
      nil until client.gets.strip.empty?
      (number % 3 == 0 ? Mail::Welcome : Report).perform_async(number, "planted-value")
      client.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    end
    client.close
  end
end
