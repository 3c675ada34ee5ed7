// A certified OpenID provider over TLS on loopback: node oidc_provider.mjs PACKAGE_FOLDER CERTIFICATE_AND_KEY CLIENT_CERTIFICATE
// It prints its address. A person who has typed a code is POST /approve?user_code=… or /deny?user_code=…; /expire lets the
// code run out.
import { createPublicKey } from "node:crypto";
import fs from "node:fs";
import https from "node:https";

const [folder, certificate, clientCertificate] = process.argv.slice(2);
const { Provider } = await import(`file://${folder}/oidc-provider/lib/index.js`);
const pem = fs.readFileSync(certificate);
const clientKey = createPublicKey(fs.readFileSync(clientCertificate)).export({ format: "jwk" });
const server = https.createServer({ key: pem, cert: pem });

server.listen(0, "127.0.0.1", () => {
  const issuer = `https://localhost:${server.address().port}`;
  const none = { redirect_uris: [], response_types: [] };
  const provider = new Provider(issuer, {
    clients: [
      { client_id: "daemon", client_secret: "s3cret", token_endpoint_auth_method: "client_secret_post",
        grant_types: ["client_credentials"], ...none },
      { client_id: "signer", token_endpoint_auth_method: "private_key_jwt", jwks: { keys: [clientKey] },
        grant_types: ["client_credentials"], ...none },
      { client_id: "person", token_endpoint_auth_method: "none",
        grant_types: ["refresh_token", "urn:ietf:params:oauth:grant-type:device_code"], ...none },
      { client_id: "confidential", client_secret: "s3cret", token_endpoint_auth_method: "client_secret_post",
        grant_types: ["refresh_token", "urn:ietf:params:oauth:grant-type:device_code"], ...none },
    ],
    scopes: ["openid", "offline_access", "mail"],
    features: { clientCredentials: { enabled: true }, deviceFlow: { enabled: true }, devInteractions: { enabled: false } },
    rotateRefreshToken: true,
    ttl: { AccessToken: 3600, ClientCredentials: 3600, RefreshToken: 86400, DeviceCode: 600, Grant: 86400 },
    findAccount: async (_, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  });
  const answer = provider.callback();
  server.on("request", async (request, response) => {
    const address = new URL(request.url, issuer);
    if (!["/approve", "/deny", "/expire"].includes(address.pathname)) return answer(request, response);
    const code = await provider.DeviceCode.findByUserCode(address.searchParams.get("user_code").replace("-", ""));
    const now = Math.floor(Date.now() / 1000);
    if (address.pathname === "/approve") {
      const grant = new provider.Grant({ accountId: "shop", clientId: code.clientId });
      grant.addOIDCScope("openid offline_access mail");
      Object.assign(code, { accountId: "shop", grantId: await grant.save(), scope: "openid offline_access mail" });
      Object.assign(code, { claims: {}, authTime: now, acr: undefined, amr: undefined, sessionUid: "s" });
    } else if (address.pathname === "/deny") {
      code.error = "access_denied";
    } else {
      code.exp = now - 1;
    }
    await code.save();
    response.end("done");
  });
  console.log(issuer);
});
