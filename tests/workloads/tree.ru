# An application for Puma: GET /MODE/ID calls /b/ID/kN/dT of the upstream.

require 'net/http'

UPSTREAM = Integer(ENV.fetch('UPSTREAM_PORT'))

def own
  Thread.current[:upstream] ||= Net::HTTP.start('127.0.0.1', UPSTREAM, nil)
end

run lambda { |env|
  _, mode, ident = env['PATH_INFO'].split('/')
  sleep(rand * 0.004)
  2.times do |number|
    path = "/b/#{ident}/k#{number}/d#{rand(500..6500)}"
    if mode == 'same'
      own.get(path)
    else
      Net::HTTP.start('127.0.0.1', UPSTREAM, nil) { |connection| connection.get(path) }
    end
  end
  [200, { 'Content-Length' => '3' }, ["ok\n"]]
}
